package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/etcd-warden/etcd-warden/supervisor"
)

// etcdBinaryVariable says which etcd to supervise when the program is called under the name etcd.
const etcdBinaryVariable = "WARDEN_ETCD_BINARY"

// dropIn turns a call under the name `etcd` into `etcd-warden run -- REAL-ETCD …`: a manifest that says
// `command: [etcd, …]` stays as it is, and the warden's own settings come from WARDEN_* or the configuration file. Any
// other call is returned as it is.
func dropIn(args []string) ([]string, error) {
	if len(args) == 0 || filepath.Base(args[0]) != "etcd" {
		return args, nil
	}
	etcd, err := realEtcd()
	if err != nil {
		return nil, err
	}
	return append([]string{"etcd-warden", "run", "--", etcd}, args[1:]...), nil
}

// isSelf says whether path is this program, under whatever name.
func isSelf(path string) bool {
	self, err := os.Stat("/proc/self/exe")
	if err != nil {
		return false
	}
	st, err := os.Stat(path)
	return err == nil && os.SameFile(st, self)
}

// realEtcd is the etcd that is not this program: the one named by the variable, or the first in $PATH.
func realEtcd() (string, error) {
	self, err := os.Stat("/proc/self/exe")
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	candidates := []string{os.Getenv(etcdBinaryVariable)}
	if candidates[0] == "" {
		candidates = nil
		for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
			candidates = append(candidates, filepath.Join(dir, "etcd"))
		}
	}
	for _, path := range candidates {
		if st, err := os.Stat(path); err == nil && !os.SameFile(st, self) && st.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", &supervisor.ExecError{Path: "etcd", Code: exitNotFound,
		Err: errors.New("called under the name etcd, but there is no real etcd in $PATH: name it in " + etcdBinaryVariable)}
}
