// A click on a box of the flame graph gives it the whole width; a second one takes it back.
document.querySelectorAll(".flame").forEach(function (flame) {
  function reset() {
    flame.querySelectorAll(".hidden").forEach(function (box) { box.classList.remove("hidden"); });
    flame.querySelectorAll("[data-width]").forEach(function (box) {
      box.style.width = box.dataset.width;
      delete box.dataset.width;
    });
  }
  var zoomed = null;
  flame.addEventListener("click", function (event) {
    var target = event.target.closest(".box");
    if (!target) return;
    reset();
    if (target === zoomed) { zoomed = null; return; }
    zoomed = target;
    for (var box = target.parentElement; box !== flame; box = box.parentElement) {
      if (!box.style.width) continue;
      box.dataset.width = box.style.width;
      box.style.width = "100%";
      Array.prototype.forEach.call(box.parentElement.children, function (other) {
        if (other !== box && !other.classList.contains("box")) other.classList.add("hidden");
      });
    }
  });
});
