// Package prometheus checks the alerting rules with Prometheus' own parser. It is a module of its own, so that nothing of it
// reaches the program's go.mod.
package prometheus
