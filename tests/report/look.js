// Runs beside the page, in the parent of its frame: the page lets nobody else's script in.
function rgb(text) { var n = text.match(/[\d.]+/g).map(Number); return n.length < 4 ? n.concat(1) : n; }
function light(c) {
  var v = c.slice(0, 3).map(function (x) { x /= 255; return x <= 0.03928 ? x / 12.92 : Math.pow((x + 0.055) / 1.055, 2.4); });
  return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2];
}
function ratio(a, b) { var x = light(a), y = light(b); return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05); }
function paper(view, one) {
  for (; one; one = one.parentElement) {
    var c = rgb(view.getComputedStyle(one).backgroundColor);
    if (c[3] > 0.9) { return c; }
  }
  return [255, 255, 255, 1];
}
function shown(one) { var r = one.getBoundingClientRect(); return r.width > 0 && r.height > 0; }
function look() {
  var page = document.querySelector("iframe").contentDocument, view = document.querySelector("iframe").contentWindow, root = page.documentElement;
  var wide = root.clientWidth, outside = [], overlaps = [], faint = [];
  page.querySelectorAll("svg text").forEach(function (text) {
    if (!shown(text)) { return; }
    var r = text.getBoundingClientRect();
    if (r.left < -1 || r.right > wide + 1) { outside.push(text.textContent); }
  });
  page.querySelectorAll("body *").forEach(function (one) {
    if (one.closest("svg,script,style,.skip") || !shown(one)) { return; }
    var style = view.getComputedStyle(one);
    if (style.overflowX === "hidden" && one.scrollWidth > one.clientWidth + 1) { outside.push(one.className + ": " + one.textContent.slice(0, 40)); }
    if (!one.closest(".scroll,nav") && one.getBoundingClientRect().right > wide + 1) { outside.push(one.tagName + " " + one.className); }
  });
  page.querySelectorAll("svg").forEach(function (plot) {
    if (plot.parentElement.closest("svg")) { return; }
    var rects = Array.from(plot.querySelectorAll("text")).filter(shown).map(function (text) { return [text.textContent, text.getBoundingClientRect()]; });
    for (var i = 0; i < rects.length; i++) { for (var j = 0; j < i; j++) {
      var a = rects[i][1], b = rects[j][1];
      if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3) { overlaps.push(rects[i][0] + " / " + rects[j][0]); }
    } }
  });
  page.querySelectorAll("h1,h2,h3,p,dt,dd,td,th,a,li,code,caption,summary,footer,button,.chip,svg text").forEach(function (one) {
    if (!shown(one) || !one.textContent.trim() || one.closest(".skip")) { return; }
    var style = view.getComputedStyle(one), isSvg = !!one.closest("svg");
    if (isSvg && /on-(dark|light)/.test(one.getAttribute("class"))) { return; }
    var ink = rgb(isSvg ? style.fill : style.color), back = paper(view, isSvg ? one.closest(".fig") : one), found = ratio(ink, back);
    var least = parseFloat(style.fontSize) >= 24 ? 3 : 4.5;
    if (found < least) { faint.push(one.tagName + "." + one.getAttribute("class") + " " + found.toFixed(2)); }
  });
  function top(selector) { var one = page.querySelector(selector); return one ? Math.round(one.getBoundingClientRect().top) : null; }
  return {
    page_width: root.scrollWidth, wide: wide,
    charts: Array.from(page.querySelectorAll(".fig")).filter(function (figure) { var plot = figure.querySelector("svg"); return plot && plot.clientWidth > 200; }).length,
    live: page.querySelectorAll(".fig.is-live").length, images: page.querySelectorAll("img").length,
    outside: Array.from(new Set(outside)), overlaps: Array.from(new Set(overlaps)), faint: Array.from(new Set(faint)),
    tops: { title: top("h1"), chip: top(".chip"), numbers: top(".cards"), chart: top(".fig svg") },
  };
}
