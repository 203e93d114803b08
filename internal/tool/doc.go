// Package tool contains the code that lockctl and natslock-exporter share, so that both commands
// find the server in the same way, use the same exit codes and show no credentials. The packages
// that services import do not depend on it.
package tool
