// Times, keys, copying and live parts. Everything else works without it.
(() => {
  "use strict";
  const root = document.documentElement;
  root.classList.add("scripted");
  const ahead = Number(root.dataset.now) - Date.now(); // of this clock

  // Times: relative, kept true; exact in the viewer's zone.
  const exact = new Intl.DateTimeFormat(undefined, {
    year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit",
    fractionalSecondDigits: 3, timeZoneName: "short",
  });
  const span = (s) => s < 120 ? `${Math.floor(s)} s` : s < 7200 ? `${Math.floor(s / 60)} min`
    : s < 172800 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 86400)} days`;
  const times = (within) => {
    for (const t of within.querySelectorAll("time")) {
      const at = new Date(t.dateTime);
      const ago = (Date.now() + ahead - at.getTime()) / 1000;
      const text = ago >= 1 ? `${span(ago)} ago` : ago <= -1 ? `in ${span(-ago)}` : "just now";
      if (t.textContent !== text) t.textContent = text;
      if (!t.dataset.exact) t.title = t.dataset.exact = exact.format(at);
    }
  };
  times(document);
  setInterval(() => times(document), 1000);

  // Copying.
  const say = (text) => { document.getElementById("status").textContent = text; };
  document.addEventListener("click", (e) => {
    const b = e.target.closest("button.copy");
    if (!b) return;
    e.preventDefault();
    navigator.clipboard?.writeText(b.dataset.copy).then(() => {
      b.classList.add("copied");
      say("Copied");
      setTimeout(() => b.classList.remove("copied"), 1200);
    }, () => say("Copying is not allowed here"));
  });

  // Choosing all rows of a table.
  document.addEventListener("change", (e) => {
    if (!e.target.matches("input.all")) return;
    for (const box of e.target.closest("table").querySelectorAll("tbody input[type=checkbox]")) box.checked = e.target.checked;
  });

  // Keys.
  const dialog = document.getElementById("keys");
  document.getElementById("help")?.addEventListener("click", () => dialog.showModal());
  const screens = { o: "./", m: "messages", f: "failures", b: "outbox", h: "health", l: "log" };
  let went = 0;
  document.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || dialog.open) return;
    if (e.target.matches("input, select, textarea")) {
      if (e.key === "Escape") e.target.blur();
      return;
    }
    if (Date.now() - went < 1500 && screens[e.key]) {
      location.assign(screens[e.key]);
    } else if (e.key === "/") {
      document.getElementById("search").focus();
    } else if (e.key === "?") {
      dialog.showModal();
    } else if (e.key === "j" || e.key === "k") {
      const rows = [...document.querySelectorAll("main a.row")];
      const at = rows.indexOf(document.activeElement);
      rows[Math.min(rows.length - 1, Math.max(0, at + (e.key === "j" ? 1 : -1)))]?.focus();
    } else {
      went = e.key === "g" ? Date.now() : 0;
      return;
    }
    went = 0;
    e.preventDefault();
  });

  // Live parts: the server renders them; only what has changed is replaced, and focus stays where it was.
  const live = document.getElementById("live");
  const from = document.body.dataset.live;
  if (!live || !from) return;
  const pulse = document.getElementById("pulse");
  const word = document.getElementById("pulse-text");
  const state = (name, text) => { pulse.className = `pulse ${name}`; word.textContent = text; };
  let announced = "";
  const show = (html) => {
    const fresh = document.createElement("template");
    fresh.innerHTML = html;
    times(fresh.content);
    const old = [...live.children], next = [...fresh.content.children];
    const same = old.length === next.length && old.every((el, i) => el.id === next[i].id && el.tagName === next[i].tagName);
    const focused = live.contains(document.activeElement) ? document.activeElement : null;
    const scrolled = [...live.querySelectorAll(".scroll")].map((el) => [el.scrollLeft, el.scrollTop]);
    if (same) old.forEach((el, i) => { if (el.outerHTML !== next[i].outerHTML) el.replaceWith(next[i]); });
    else live.replaceChildren(...next);
    live.querySelectorAll(".scroll").forEach((el, i) => { if (scrolled[i]) [el.scrollLeft, el.scrollTop] = scrolled[i]; });
    if (focused && !focused.isConnected) {
      const href = focused.getAttribute("href");
      const like = [...live.querySelectorAll("a, button, [tabindex]")].find((el) => href !== null ? el.getAttribute("href") === href
        : el.getAttribute("aria-label") === focused.getAttribute("aria-label"));
      like?.focus({ preventScroll: true });
    }
    const text = [...live.querySelectorAll("[data-announce]")].map((el) => el.textContent).join(", ");
    if (announced && text !== announced) say(text);
    announced = text;
  };
  let source = null, retry = 0;
  const open = () => {
    if (source || document.hidden) return;
    source = new EventSource(from);
    source.onmessage = (e) => { state("on", "Live"); show(e.data); };
    source.onerror = () => {
      close();
      state("off", "Connection lost, trying again");
      retry = setTimeout(open, 3000);
    };
  };
  const close = () => { clearTimeout(retry); source?.close(); source = null; };
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  addEventListener("pageshow", (e) => { if (e.persisted) open(); });
  open();
})();
