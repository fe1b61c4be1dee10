// Every page works without this: it adds keys, copying, and a slider that turns the page.

for (const button of document.querySelectorAll("button[data-copy]")) {
  button.hidden = !navigator.clipboard;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
  });
}

const slider = document.querySelector(".scroll");
slider?.addEventListener("change", () => slider.form.submit());

const follow = (relation) => document.querySelector(`a[rel="${relation}"]`)?.click();

const keys = {
  ArrowLeft: () => follow("prev"),
  ArrowRight: () => follow("next"),
  g: () => document.querySelector("#goto")?.select(),
  u: () => (document.querySelector('a[rel="up"]') ?? [...document.querySelectorAll('nav[aria-label="Place"] a')].at(-1))?.click(),
};

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select, audio");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
  event.preventDefault();
  keys[event.key]();
});
