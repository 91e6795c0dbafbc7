// Command etcd-warden supervises an etcd, as PID 1 or as an ordinary process, and hands it over to another site when DNS
// says that the cluster is owned there.
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/etcd-warden/etcd-warden/signals"
	"github.com/etcd-warden/etcd-warden/supervisor"
)

// version is set by the linker.
var version = "development"

func main() {
	if code, handled := supervisor.Trampoline(os.Args); handled {
		os.Exit(code)
	}
	inbox := signals.Notify() // before anything else: as PID 1, a signal that comes earlier is lost
	os.Exit(run(os.Args, inbox))
}

func run(args []string, inbox *signals.Inbox) int {
	code, err := execute(args, inbox)
	if err != nil {
		atMost(lastWords, func() { fmt.Fprintf(os.Stderr, "etcd-warden: error: %s\n", strings.TrimSpace(err.Error())) })
	}
	return code
}
