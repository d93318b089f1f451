// State and rows in flight of a snapshot as tables, and a box for SQL.
import { html, useEffect, useState } from "../vendor/htm-preact.js";
import { post } from "../api.js";
import { Trouble } from "./bits.js";
import { plural } from "../words.js";

export function Sql({ at }) {
  const [query, type] = useState("");
  const [tables, known] = useState([]);
  const [state, set] = useState({});
  const ask = async (text) => {
    type(text);
    set({ asking: true });
    try { set({ rows: await post(`${at}/sql`, { query: text }) }); } catch (refused) { set({ refused }); }
  };
  const open = async () => {
    try { known((await post(`${at}/sql`, { query: ".tables" })).rows); } catch (refused) { set({ refused }); }
  };
  useEffect(() => { open(); }, [at]);
  const press = (e) => { if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) { e.preventDefault(); ask(query); } };
  return html`<section class="card sql"><h2>Inside it</h2>
    <div class="tables" role="group" aria-label="Tables of the snapshot">${tables.map(([name, about]) => html`<button class="small" title=${about} onClick=${() => ask(`from ${quoted(name)}`)}>${name}</button>`)}
      ${!tables.length && !state.refused && html`<span class="quiet">Reading what can be asked …</span>`}</div>
    <label class="field">SQL, as DuckDB has it
      <textarea rows="3" spellcheck="false" value=${query} placeholder="select … from state.STAGE" onInput=${(e) => type(e.target.value)} onKeyDown=${press}></textarea></label>
    <div class="actions"><button class="main" disabled=${!query.trim() || state.asking} onClick=${() => ask(query)}>Ask</button><span class="quiet" aria-live="polite">${state.asking ? "asking …" : "Ctrl and Enter"}</span></div>
    <div aria-live="polite">
      ${state.refused && html`<${Trouble} error=${state.refused.message} untouched=${state.refused.untouched} next=${state.refused.next} role="alert" />`}
      ${state.rows && html`<p class="quiet">${state.rows.rows.length ? `${plural(state.rows.rows.length, "row")}${state.rows.more ? ", and more" : ""}` : "no rows"}</p>
        <div class="found"><table><thead><tr>${state.rows.columns.map((c) => html`<th>${c}</th>`)}</tr></thead>
        <tbody>${state.rows.rows.map((r) => html`<tr>${r.map((v) => html`<td>${v}</td>`)}</tr>`)}</tbody></table></div>`}
    </div></section>`;
}

// A name of a table, as SQL wants it.
const quoted = (name) => name.split(".").map((p) => (/^[a-z_][a-z0-9_]*$/i.test(p) ? p : `"${p.replaceAll('"', '""')}"`)).join(".");
