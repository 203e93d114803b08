// Package tool is the code that lockctl and natslock-exporter share. Both commands find the
// server in the same way, exit with the same codes, and show no credentials. The packages that
// services import do not depend on it.
package tool
