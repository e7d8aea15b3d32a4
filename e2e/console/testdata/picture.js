// What the window shows, as a list of rectangles and texts: {x, y, w, h, fill} and {x, y, text, size, weight, mono, fill}.
(() => {
  const things = [];
  const seen = (c) => c && c !== "transparent" && !/, 0\)$/.test(c);
  const round = (n) => Math.round(n * 10) / 10;
  const rect = (x, y, w, h, fill, r = 0) => {
    if (w > 0 && h > 0 && seen(fill)) things.push({ x: round(x), y: round(y), w: round(w), h: round(h), r, fill });
  };
  const visible = (e) => e.checkVisibility() && getComputedStyle(e).clipPath === "none";
  const walk = (e) => {
    if (!visible(e)) return;
    const s = getComputedStyle(e), b = e.getBoundingClientRect();
    rect(b.x, b.y, b.width, b.height, s.backgroundColor, parseFloat(s.borderRadius) || 0);
    if (parseFloat(s.borderBottomWidth)) rect(b.x, b.bottom - 1, b.width, 1, s.borderBottomColor);
    if (e.matches("progress")) rect(b.x, b.y, b.width * e.value / e.max, b.height, s.accentColor, b.height / 2);
    for (const child of e.childNodes) {
      if (child.nodeType === Node.ELEMENT_NODE) walk(child);
      if (child.nodeType !== Node.TEXT_NODE || !child.data.trim()) continue;
      // One text for each line that it takes.
      const range = document.createRange();
      let line = "", at = null;
      const flush = () => {
        if (line.trim()) {
          things.push({ x: round(at.x), y: round(at.bottom - at.height * 0.24), text: line.trimEnd(), size: parseFloat(s.fontSize),
            weight: Number(s.fontWeight), mono: /mono/.test(s.fontFamily), w: round(at.right - at.x), fill: s.color });
        }
      };
      for (let i = 0; i < child.data.length; i++) {
        range.setStart(child, i);
        range.setEnd(child, i + 1);
        const box = range.getClientRects()[0];
        if (!box || !box.width) continue;
        if (at && Math.abs(box.y - at.y) > 2) { flush(); at = null; line = ""; }
        at ??= { x: box.x, y: box.y, bottom: box.bottom, height: box.height };
        at.right = box.right;
        line += child.data[i] === "\n" ? " " : child.data[i];
      }
      if (at) flush();
    }
  };
  walk(document.body);
  return things;
})()
