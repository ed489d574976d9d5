"use strict";
document.querySelector("form").addEventListener("submit", (event) => {
  event.currentTarget.querySelector("button").disabled = true;
});
