"use strict";
fetch("/session").then(async (answer) => {
  if (answer.status === 401) {
    location.assign("/login");
    return;
  }
  document.getElementById("name").textContent = (await answer.json()).name;
});
