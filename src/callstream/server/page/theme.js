/** Light or dark: the system's setting until the user chooses; the choice is kept. */

const KEY = "callstream.theme";

/** @returns {"light" | "dark"} */
function current() {
  const chosen = localStorage.getItem(KEY);
  if (chosen === "light" || chosen === "dark") return chosen;
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

/** Applies the current theme. */
function apply() {
  document.documentElement.dataset.theme = current();
  const name = document.getElementById("theme-name");
  if (name !== null) name.textContent = current() === "dark" ? "Use the light theme" : "Use the dark theme";
}

export function toggleTheme() {
  localStorage.setItem(KEY, current() === "dark" ? "light" : "dark");
  apply();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
apply();
