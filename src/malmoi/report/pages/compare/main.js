// The page stands without scripts; this changes its language, and says when it can be looked at.
(() => {
  "use strict";
  const root = document.documentElement;
  const chooser = document.getElementById("language");
  const show = (language) => {
    root.lang = language;
    chooser.value = language;
  };
  chooser.addEventListener("change", () => show(chooser.value));
  show(root.lang);
  // A long command is chosen whole by one press.
  for (const code of document.querySelectorAll("#next pre")) {
    code.tabIndex = 0;
    code.addEventListener("dblclick", () => getSelection().selectAllChildren(code));
  }
  root.dataset.ready = "yes";
})();
