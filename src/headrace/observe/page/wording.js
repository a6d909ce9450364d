/* Figures as people read them; times are in microseconds. */
function digits(value) {
  return Math.abs(value) >= 99.95 ? Math.round(value).toLocaleString("en") : value.toFixed(Math.abs(value) >= 9.995 ? 1 : 2);
}
function duration(micros) {
  if (micros < 0) return `-${duration(-micros)}`;
  if (micros < 999.5) return `${Math.round(micros)} µs`;
  if (micros < 999500) return `${digits(micros / 1e3)} ms`;
  if (micros < 59.95e6) return `${digits(micros / 1e6)} s`;
  return clock(micros, 1e6);
}
function clock(micros, step) {
  if (micros < 0) return `-${clock(-micros, step)}`;
  const decimals = Math.max(0, Math.min(6, Math.ceil(6 - Math.log10(step) - 1e-9)));
  const rounded = Math.round(micros / 1e6 * 10 ** decimals) / 10 ** decimals;
  if (rounded < 60) return `${rounded.toFixed(decimals)} s`;
  const whole = Math.floor(rounded + 1e-9), two = (n) => String(n).padStart(2, "0");
  const tail = decimals ? (rounded - whole).toFixed(decimals).slice(1) : "";
  const [days, hours, minutes] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60];
  const head = days ? `${days} d ${two(hours)}:${two(minutes)}` : hours ? `${hours}:${two(minutes)}` : `${minutes}`;
  return `${head}:${two(whole % 60)}${tail}`;
}
function bytes(value) {
  const unit = [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]].find(([, scale]) => value >= scale);
  return unit ? `${digits(value / unit[1])} ${unit[0]}` : `${value} B`;
}
