// Shows what the server sends when the books change. Without it, the page reloads itself.
const live = document.getElementById("live");
new EventSource("live").onmessage = ({ data }) => {
  if (document.querySelector("a:active")) return; // somebody is about to follow it
  const focused = document.activeElement?.id;
  live.innerHTML = data;
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
};
