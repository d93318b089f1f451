// Speaks to /api/v1. Every address is relative, so that the page works below any path.
import { useEffect, useState } from "./vendor/htm-preact.js";

const API = "api/v1";

export class Refused extends Error {
  constructor(said, status) {
    super(said.error || "It did not work.");
    this.untouched = said.untouched || "";
    this.next = said.next || "";
    this.status = status;
  }
}

async function ask(method, path, body) {
  let answer;
  try {
    answer = await fetch(API + path, {
      method,
      headers: body === undefined ? {} : { "Content-Type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new Refused({ error: "strobe ui does not answer.", next: "Is it still running? Its terminal says so." }, 0);
  }
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(said, answer.status);
  return said;
}

export const get = (path) => ask("GET", path);
export const post = (path, body = {}) => ask("POST", path, body);
export const part = encodeURIComponent;

// What is watched, as it is now. Nothing is asked while the page is hidden.
export function useWatch(topic) {
  const [state, set] = useState({ seen: null, trouble: null, lost: false });
  useEffect(() => {
    set({ seen: null, trouble: null, lost: false });
    let source = null;
    const open = () => {
      if (source || document.hidden) return;
      source = new EventSource(`${API}/events?watch=${part(topic)}`);
      source.addEventListener("seen", (e) => {
        const began = performance.now();
        set({ seen: JSON.parse(e.data), trouble: null, lost: false });
        requestAnimationFrame(() => performance.measure("update", { start: began, end: performance.now() }));
      });
      source.addEventListener("trouble", (e) => set((s) => ({ ...s, trouble: JSON.parse(e.data), lost: false })));
      source.onerror = () => set((s) => ({ ...s, lost: true }));
    };
    const close = () => {
      if (source) source.close();
      source = null;
    };
    const turn = () => (document.hidden ? close() : open());
    document.addEventListener("visibilitychange", turn);
    open();
    return () => {
      document.removeEventListener("visibilitychange", turn);
      close();
    };
  }, [topic]);
  return state;
}

// An answer that is asked for once, and again when `key` changes.
export function useAnswer(path, key = "") {
  const [state, set] = useState({ answer: null, refused: null });
  useEffect(() => {
    let current = true;
    get(path).then(
      (answer) => current && set({ answer, refused: null }),
      (refused) => current && set((s) => ({ answer: s.answer, refused })),
    );
    return () => { current = false; };
  }, [path, key]);
  return state;
}
