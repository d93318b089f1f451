// A system of live processes.
import { html, useState } from "../vendor/htm-preact.js";
import { part, post, useWatch } from "../api.js";
import { Crumbs, Loading, Lost, State, Trouble, useNow } from "../parts/bits.js";
import { Order } from "../parts/dialog.js";
import { Graph } from "../parts/graph.js";
import { bytes, clock, count, ms, plural, rate, short, since } from "../words.js";

export function System({ name, session }) {
  const { seen, trouble, lost } = useWatch(`system/${name}`);
  const [order, give] = useState(null);
  const [chosen, choose] = useState(null);
  const now = useNow();
  const crumbs = html`<${Crumbs} at=${[["Jobs", "#/"], [name]]} />`;
  if (!seen) return html`${crumbs}<${Lost} lost=${lost} />${trouble ? html`<${Trouble} ...${trouble} />` : html`<${Loading} what="the system" />`}`;
  const r = seen.report, nodes = r.nodes || [], channels = r.channels || [], checks = r.checks || [], invariants = r.invariants || [];
  const boxes = Object.fromEntries(nodes.map((n) => [n.node, { mood: n.trouble ? "failed" : n.queued || n.received_per_second ? "busy" : "idle", error: !!n.trouble,
    lines: [`in ${rate(n.received_per_second)}/s · out ${rate(n.sent_per_second)}/s`, `${short(n.queued)} queued`, `${n.connected} of ${n.outputs} connected`] }]));
  const wires = {};
  for (const c of channels) {
    const key = `${c.source}>${c.target}`, old = wires[key] || { waiting: 0, title: "" };
    wires[key] = { waiting: old.waiting + c.unacknowledged, title: `${old.title}${c.channel}: ${count(c.sent)} sent, ${count(c.received)} received, ${count(c.unacknowledged)} on their way\n` };
  }
  const at = `/systems/${part(name)}`;
  return html`${crumbs}<${Lost} lost=${lost} />
    <div class="title"><h1>${name}</h1><${State} state=${seen.job.state} />
      <span class="quiet">${[seen.job.live ? r.seconds && `pid ${r.pid}` : "not running", r.incarnation && `incarnation ${r.incarnation}`, r.restores ? plural(r.restores, "restore") : "",
        r.completed !== undefined && `${plural(r.completed, "snapshot")}${r.failed ? `, ${r.failed} failed` : ""}`].filter(Boolean).join(" · ")}</span>
      <${Actions} seen=${seen} at=${at} name=${name} session=${session} give=${give} chosen=${chosen} /></div>
    <nav class="tabs" aria-label="Views of the system"><a href=${`#/system/${part(name)}`} aria-current="page">Nodes</a>
      ${seen.journal && html`<a href=${`#/system/${part(name)}/diagram`}>Space–time diagram</a>`}</nav>
    <${Trouble} error=${seen.job.trouble || seen.job.error} /><${Trouble} error=${r.reason && r.failed ? `The last snapshot that failed: ${r.reason}` : ""} />
    <div class=${`barrier ${(r.pending || []).length ? "on" : ""}`} role="status"><span class="bar" aria-hidden="true"><i style=${{ width: (r.pending || []).length ? "50%" : "0" }}></i></span>
      <span>${(r.pending || []).length ? html`<b>snapshot ${r.pending.join(", ")}</b> is under way: markers travel` : "No snapshot is under way."}</span>
      <span class="quiet grow">${seen.job.last ? `last: ${seen.job.last.snapshot}, ${since(seen.job.last.ended, now)} ago` : ""}</span></div>
    ${seen.drawing.boxes.length > 0 && html`<section class="card" aria-label="The graph"><${Graph} drawing=${seen.drawing} boxes=${boxes} wires=${wires} chosen=${chosen}
      choose=${(n) => choose(n === chosen ? null : n)} label=${`${plural(seen.drawing.boxes.length, "node")} of ${name}`} /></section>`}
    ${checks.length > 0 && html`<section class="card"><h2>Checks</h2><ul class="plain">${checks.map((c) => html`<li class=${c.found ? "bad-ink" : ""}><b>${c.check}</b> ${[c.sentence, ...(c.details || [])].join("; ")}${c.snapshot ? html` <span class="quiet">snapshot ${c.snapshot}</span>` : ""}</li>`)}</ul></section>`}
    ${invariants.length > 0 && html`<section class="card"><h2>Invariants</h2><ul class="plain">${invariants.map((i) => html`<li class=${i.outcome === "violated" || i.outcome === "failed" ? "bad-ink" : ""}>${i.sentence || `${i.name}: not asked yet`}</li>`)}</ul></section>`}
    ${channels.length > 0 && html`<section class="card flush"><h2>Channels</h2><table class="rows"><thead><tr><th>channel</th><th>from</th><th>to</th><th class="num">sent</th><th class="num">received</th><th class="num">on their way</th><th>connected</th></tr></thead>
      <tbody>${channels.map((c) => html`<tr key=${c.channel}><th scope="row" data-label="channel">${c.channel}</th><td data-label="from">${c.source}</td><td data-label="to">${c.target}</td><td class="num" data-label="sent">${count(c.sent)}</td><td class="num" data-label="received">${count(c.received)}</td><td class="num" data-label="on their way">${count(c.unacknowledged)}</td><td data-label="connected">${c.connected ? "yes" : "no"}</td></tr>`)}</tbody></table></section>`}
    ${seen.snapshots.length > 0 && html`<section class="card flush"><h2>Snapshots</h2><table class="rows"><thead><tr><th>snapshot</th><th>status</th><th>completed</th><th class="num">took</th><th class="num">new</th><th class="num">total</th></tr></thead>
      <tbody>${seen.snapshots.map((s) => html`<tr key=${s.snapshot}><th scope="row" data-label="snapshot"><a href=${`#/job/${part(name)}/snapshots/${s.snapshot}`}>${s.snapshot}</a> <span class="quiet">${s.kind}</span></th><td data-label="status"><${State} state=${s.status} /></td><td data-label="completed">${clock(s.ended)}</td><td class="num" data-label="took">${ms(s.duration_ms)}</td><td class="num" data-label="new">${bytes(s.bytes_new)}</td><td class="num" data-label="total">${bytes(s.bytes_total)}</td></tr>`)}</tbody></table></section>`}
    ${order && html`<${Order} order=${order} onClose=${() => give(null)} />`}`;
}

function Actions({ seen, at, name, session, give, chosen }) {
  const off = session.read_only || !seen.job.live;
  const orders = {
    Snapshot: { title: "Take a snapshot", verb: "Take it", does: "Markers go through every channel; every node records its state, and what was on its way. The system runs on.",
      command: () => `strobe live snapshot ${name}`, act: () => post(`${at}/snapshot`), show: ({ done: d }) => html`Snapshot <a href=${`#/job/${part(name)}/snapshots/${d.snapshot}`}>${d.snapshot}</a> is complete.` },
    Breakpoint: { title: "Set a breakpoint", verb: "Wait for it", does: "Waits until a condition over the state of a node holds; then the whole system is snapshotted as it was at that moment.",
      fields: [{ name: "condition", label: "Condition", hint: "a.balance < 50" }], command: (v) => `strobe live break ${name} '${v.condition || "CONDITION"}'`,
      act: (v) => post(`${at}/break`, { condition: v.condition || "" }), show: ({ done: d }) => html`It held at ${d.node}: <a href=${`#/job/${part(name)}/snapshots/${d.snapshot}`}>snapshot ${d.snapshot}</a>.` },
    Kill: { title: chosen ? `Kill ${chosen}` : "Kill a node", verb: "Kill it", danger: true, does: "Kills the process of a node, as a crash would. The system goes back to its last snapshot and goes on.", start: { node: chosen || "" },
      fields: [{ name: "node", label: "Node" }], command: (v) => `strobe live kill ${name} ${v.node || "NODE"}`, act: (v) => post(`${at}/kill`, { node: v.node }), show: ({ done: d }) => html`${d.node} was killed.` },
    "Take down": { title: "Take the system down", verb: "Take it down", danger: true, does: "Takes a last snapshot, then ends every process.",
      command: () => `strobe live down ${name}`, act: () => post(`${at}/down`), show: ({ done: d }) => html`It is down: ${d.why}${d.snapshot ? `, with snapshot ${d.snapshot}` : ""}.` },
  };
  return html`<div class="actions" role="group" aria-label="Orders">${Object.entries(orders).map(([n, o]) => html`<button disabled=${off} class=${o.danger ? "danger" : ""} onClick=${() => give(o)}>${n}</button>`)}</div>`;
}
