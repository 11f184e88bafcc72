// Runs before the first paint, or a dark page flashes white. 'auto' follows the system.
'use strict';
{
  const THEMES = ['auto', 'light', 'dark'];
  const stored = localStorage.getItem('pwgrid-theme');
  document.documentElement.dataset.theme = THEMES.includes(stored) ? stored : 'auto';
  document.addEventListener('DOMContentLoaded', () => {
    const button = document.getElementById('theme');
    const say = () => { button.textContent = `Theme: ${document.documentElement.dataset.theme}`; };
    button.addEventListener('click', () => {
      const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
      document.documentElement.dataset.theme = next;
      localStorage.setItem('pwgrid-theme', next);
      say();
      document.dispatchEvent(new Event('themechange'));
    });
    say();
  });
}
