// Package kubernetes checks the examples in packaging/kubernetes against the API's own types. It is a module of its own, so
// that none of them reach the program's go.mod.
package kubernetes
