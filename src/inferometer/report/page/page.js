(function () {
  "use strict";
  var tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  document.body.appendChild(tip);

  // Text nodes only: labels are user input.
  function line(name, value) {
    var row = document.createElement("div"), key = document.createElement("b"), cell = document.createElement("span");
    key.textContent = name;
    cell.textContent = value;
    row.append(key, cell);
    return row;
  }

  function tooltip(handler, event, item, value) {
    if (!value || typeof value !== "object") { tip.hidden = true; return; }
    var entries = Object.entries(value).filter(function (entry) { return !["", "undefined", "NaN", "null"].includes(String(entry[1])); });
    tip.replaceChildren.apply(tip, entries.map(function (entry) { return line(entry[0], String(entry[1])); }));
    tip.hidden = false;
    var x = event.clientX + 14, y = event.clientY + 14;
    tip.style.left = Math.max(4, Math.min(x, window.innerWidth - tip.offsetWidth - 8)) + "px";
    tip.style.top = Math.max(4, Math.min(y, window.innerHeight - tip.offsetHeight - 8)) + "px";
  }

  function refuse() { return Promise.reject(new Error("this page loads nothing")); }
  var quiet = { load: refuse, sanitize: refuse, http: refuse, file: refuse };

  function draw(figure) {
    var box = figure.querySelector(".chart"), live = figure.querySelector(".live");
    var spec = JSON.parse(figure.querySelector("script.spec").textContent);
    var wide = box.clientWidth;
    spec.width = wide;
    var options = { mode: "vega", renderer: "svg", actions: false, defaultStyle: false, hover: true, loader: quiet, tooltip: tooltip };
    return vegaEmbed(live, spec, options).then(function (drawn) {
      figure.classList.add("is-live");
      new ResizeObserver(function () {
        if (box.clientWidth && box.clientWidth !== wide) { wide = box.clientWidth; drawn.view.width(wide).runAsync(); }
      }).observe(box);
    });
  }

  document.querySelectorAll("figure").forEach(draw);
})();
