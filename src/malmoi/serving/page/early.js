// Before anything is painted: the light and the language that this browser chose last.

(() => {
  try {
    const [theme, language] = ["theme", "language"].map((name) => JSON.parse(localStorage.getItem(`malmoi.${name}`) ?? "null"));
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
    if (language === "en" || language === "ko") document.documentElement.lang = language;
  } catch {
    // Without storage the page opens as the browser likes it.
  }
})();
