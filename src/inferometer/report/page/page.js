(function () {
  "use strict";
  var SIZE = 10000, NS = "http://www.w3.org/2000/svg";
  var tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  document.body.appendChild(tip);

  // Text nodes only: names are what users and servers chose.
  function show(event, text) {
    tip.replaceChildren.apply(tip, text.split("\n").map(function (part) {
      var row = document.createElement("div"), key = document.createElement("b"), cell = document.createElement("span");
      var at = part.indexOf("\t");
      key.textContent = at < 0 ? part : part.slice(0, at);
      cell.textContent = at < 0 ? "" : part.slice(at + 1);
      row.append(key, cell);
      return row;
    }));
    tip.hidden = false;
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)) + "px";
    tip.style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)) + "px";
  }

  function number(value) {
    return Number(value.toPrecision(4)).toLocaleString("en-US", { maximumSignificantDigits: 4 });
  }

  // The value at a share of an axis, whose scale and ends stand in the drawing.
  function value(axis, share) {
    var parts = axis.split(","), low = +parts[1], high = +parts[2];
    return parts[0] === "linear" ? low + share * (high - low) : low * Math.pow(high / low, share);
  }

  function points(path) {
    if (!path.points) {
      path.points = (path.getAttribute("d").match(/-?\d+ -?\d+/g) || []).map(function (pair) {
        return pair.split(" ").map(Number);
      });
    }
    return path.points;
  }

  function live(plot) {
    var marks = plot.querySelector(".marks"), view = { from: 0, wide: SIZE };
    var xTitle = plot.dataset.xTitle, yTitle = plot.dataset.yTitle;

    function pixels(path, point) {
      var box = marks.getBoundingClientRect();
      return [box.left + (point[0] - view.from) / view.wide * box.width, box.top + point[1] / SIZE * box.height];
    }

    // What is nearest to the pointer: a dot, a box under it, else a point of a line.
    plot.addEventListener("pointermove", function (event) {
      if (event.target.dataset.t && event.target.classList.contains("box")) { return show(event, event.target.dataset.t); }
      var best = null, least = 30 * 30;
      plot.querySelectorAll(".dot,.line,.dust").forEach(function (path) {
        if (path.classList.contains("off")) { return; }
        points(path).forEach(function (point) {
          var at = pixels(path, point), dx = at[0] - event.clientX, dy = at[1] - event.clientY;
          var far = dx * dx + dy * dy + (path.classList.contains("dot") ? -60 : 0);
          if (far < least) { least = far; best = [path, point]; }
        });
      });
      if (!best) { tip.hidden = true; return; }
      var path = best[0], point = best[1];
      show(event, path.dataset.t || [path.dataset.s || "", xTitle + "\t" + number(value(plot.dataset.x, point[0] / SIZE)),
        yTitle + "\t" + number(value(plot.dataset.y, 1 - point[1] / SIZE))].filter(Boolean).join("\n"));
    });
    plot.addEventListener("pointerleave", function () { tip.hidden = true; });
    if (plot.dataset.brush !== undefined) { brush(plot, marks, view); }
  }

  // Drag over a part of the time to see it wide; the button goes back.
  function brush(plot, marks, view) {
    var shade = document.createElementNS(NS, "rect"), from = null, inner = plot.querySelector(".in");
    var back = document.createElement("button");
    shade.setAttribute("class", "brush");
    shade.setAttribute("height", SIZE);
    back.type = "button";
    back.className = "back";
    back.hidden = true;
    back.textContent = "show all of it";
    plot.parentNode.insertBefore(back, plot);
    var first = Array.from(plot.querySelectorAll(".xt"));

    function place(event) {
      var box = marks.getBoundingClientRect();
      return view.from + Math.max(0, Math.min(1, (event.clientX - box.left) / box.width)) * view.wide;
    }

    function look(start, wide) {
      view.from = start;
      view.wide = wide;
      marks.setAttribute("viewBox", start + " 0 " + wide + " " + SIZE);
      marks.style.overflow = wide < SIZE ? "hidden" : "";
      back.hidden = wide >= SIZE;
      plot.querySelectorAll(".xt").forEach(function (one) { one.remove(); });
      if (wide >= SIZE) { first.forEach(function (one) { inner.appendChild(one); }); return; }
      for (var i = 0; i <= 4; i++) {
        var text = document.createElementNS(NS, "text");
        text.setAttribute("class", "tick xt" + (i % 2 ? " wide" : ""));
        text.setAttribute("x", i * 25 + "%");
        text.setAttribute("y", +inner.getAttribute("height") + 16);
        text.setAttribute("text-anchor", i ? i === 4 ? "end" : "middle" : "start");
        text.textContent = number(value(plot.dataset.x, (start + wide * i / 4) / SIZE));
        inner.appendChild(text);
      }
    }

    plot.style.touchAction = "pan-y";
    plot.addEventListener("pointerdown", function (event) { from = place(event); event.preventDefault(); });
    addEventListener("pointermove", function (event) {
      if (from === null) { return; }
      var to = place(event);
      shade.setAttribute("x", Math.min(from, to));
      shade.setAttribute("width", Math.abs(to - from));
      marks.appendChild(shade);
    });
    addEventListener("pointerup", function (event) {
      if (from === null) { return; }
      var to = place(event), start = Math.min(from, to), wide = Math.abs(to - from);
      from = null;
      shade.remove();
      if (wide > view.wide * 0.02) { look(start, wide); }
    });
    back.addEventListener("click", function () { look(0, SIZE); });
  }

  function wire(figure) {
    if (figure.classList.contains("is-live")) { return; }
    figure.classList.add("is-live");
    figure.querySelectorAll(".plot > svg").forEach(live);
    figure.querySelectorAll(".key").forEach(function (key) {
      key.disabled = false;
      key.setAttribute("aria-pressed", "true");
      key.addEventListener("click", function () {
        var off = key.getAttribute("aria-pressed") === "true";
        key.setAttribute("aria-pressed", String(!off));
        figure.querySelectorAll("[data-s]").forEach(function (mark) {
          if (mark.dataset.s === key.dataset.name) { mark.classList.toggle("off", off); }
        });
      });
    });
  }

  // A page that draws figures anew says so.
  document.addEventListener("drawn", function (event) { event.target.querySelectorAll(".fig").forEach(wire); });
  document.querySelectorAll(".fig").forEach(wire);
})();
