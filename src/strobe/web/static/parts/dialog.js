// An order: what it will do, a confirmation, its progress, what came of it.
import { html, useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { Copy, Trouble } from "./bits.js";
import { ms } from "../words.js";

export function Dialog({ title, onClose, children }) {
  const box = useRef(null);
  useEffect(() => {
    box.current.showModal();
    const close = (e) => { e.preventDefault(); onClose(); };
    box.current.addEventListener("cancel", close);
    return () => box.current && box.current.removeEventListener("cancel", close);
  }, []);
  return html`<dialog ref=${box} aria-label=${title}>
    <header><h2>${title}</h2><button class="quiet" onClick=${onClose} aria-label="Close">✕</button></header>
    ${children}
  </dialog>`;
}

// `order.act(values)` gives a promise; `order.show(answer)` says what came of it.
export function Order({ order, onClose }) {
  const [values, set] = useState(order.start || {});
  const [stage, go] = useState({ at: "asked" });
  const [took, tick] = useState(0);
  useEffect(() => {
    if (stage.at !== "under way") return undefined;
    const began = Date.now();
    const timer = setInterval(() => tick(Date.now() - began), 200);
    return () => clearInterval(timer);
  }, [stage.at]);
  const act = async () => {
    go({ at: "under way" });
    try { go({ at: "done", answer: await order.act(values) }); } catch (refused) { go({ at: "refused", refused }); }
  };
  const command = order.command && order.command(values);
  return html`<${Dialog} title=${order.title} onClose=${onClose}>
    <p>${order.does}</p>
    ${stage.at === "asked" && (order.fields || []).map((f) => html`<${Field} field=${f} values=${values} set=${set} />`)}
    ${command && html`<p class="same">The same in a terminal: <code>${command}</code> <${Copy} text=${command} /></p>`}
    <div aria-live="polite">
      ${stage.at === "under way" && html`<p class="progress"><span class="spinner" aria-hidden="true"></span> under way, ${ms(Math.max(took, 1))} … It goes on if you close this.</p>`}
      ${stage.at === "done" && html`<div class="outcome">${order.show(stage.answer)}</div>`}
      ${stage.at === "refused" && html`<${Trouble} error=${stage.refused.message} untouched=${stage.refused.untouched} next=${stage.refused.next} role="alert" />`}
    </div>
    <footer>
      ${stage.at === "asked" && html`<button class=${order.danger ? "danger" : "main"} onClick=${act}>${order.verb}</button>`}
      <button onClick=${onClose}>${stage.at === "asked" ? "Leave it" : "Close"}</button>
    </footer>
  </${Dialog}>`;
}

function Field({ field, values, set }) {
  const change = (value) => set({ ...values, [field.name]: value });
  if (field.kind === "choice") {
    return html`<label class="field check"><input type="checkbox" checked=${!!values[field.name]} onChange=${(e) => change(e.target.checked)} /> ${field.label}</label>`;
  }
  return html`<label class="field">${field.label}
    <input type="text" value=${values[field.name] || ""} placeholder=${field.hint || ""} onInput=${(e) => change(e.target.value)} /></label>`;
}
