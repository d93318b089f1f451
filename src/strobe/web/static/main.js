// The shell: where one is, and what stands there.
import { html, render, useEffect, useState } from "./vendor/htm-preact.js";
import { useAnswer } from "./api.js";
import { Jobs } from "./pages/jobs.js";
import { Job } from "./pages/job.js";
import { Snapshots } from "./pages/snapshots.js";
import { Snapshot } from "./pages/snapshot.js";
import { System } from "./pages/system.js";
import { Diagram } from "./pages/diagram.js";

const ROUTES = [
  [/^\/$/, () => ["Jobs", html`<${Jobs} />`]],
  [/^\/job\/([^/]+)$/, (session, job) => [job, html`<${Job} key=${job} job=${job} session=${session} />`]],
  [/^\/job\/([^/]+)\/snapshots$/, (session, job) => [`${job}: checkpoints`, html`<${Snapshots} key=${job} job=${job} />`]],
  [/^\/job\/([^/]+)\/snapshots\/(\d+)$/, (session, job, id) =>
    [`${job}: snapshot ${id}`, html`<${Snapshot} key=${job + id} job=${job} id=${Number(id)} session=${session} />`]],
  [/^\/system\/([^/]+)$/, (session, name) => [name, html`<${System} key=${name} name=${name} session=${session} />`]],
  [/^\/system\/([^/]+)\/diagram$/, (session, name) => [`${name}: diagram`, html`<${Diagram} key=${name} name=${name} />`]],
];

function useRoute() {
  const read = () => decodeURI(location.hash.slice(1) || "/");
  const [route, set] = useState(read());
  useEffect(() => {
    const turn = () => set(read());
    addEventListener("hashchange", turn);
    return () => removeEventListener("hashchange", turn);
  }, []);
  return route;
}

function Page() {
  const route = useRoute();
  const { answer: session, refused } = useAnswer("/session");
  const known = session || { home: "", version: "", read_only: true };
  let title = "Nothing here", body = html`<p class="empty">There is no such page. <a href="#/">All jobs</a></p>`;
  for (const [pattern, show] of ROUTES) {
    const found = pattern.exec(route);
    if (found) { [title, body] = show(known, ...found.slice(1).map(decodeURIComponent)); break; }
  }
  useEffect(() => { document.title = `${title} – Strobe`; }, [title]);
  useEffect(() => { scrollTo(0, 0); }, [route]);
  return html`
    <a class="skip" href="#main" onClick=${(e) => { e.preventDefault(); document.getElementById("main").focus(); }}>Skip to content</a>
    <header class="top">
      <a class="brand" href="#/" aria-label="Strobe: all jobs"><img src="static/icon.svg" alt="" width="22" height="22" />strobe</a>
      <span class="home" title=${known.home}>${known.home}</span>
      ${known.read_only && session && html`<span class="tag">read-only</span>`}
      <span class="version">${known.version}</span>
    </header>
    ${refused && html`<p class="banner bad" role="alert">${refused.message} ${refused.next}</p>`}
    <main id="main" tabindex="-1">${body}</main>`;
}

const root = document.getElementById("page");
root.replaceChildren();
render(html`<${Page} />`, root);
