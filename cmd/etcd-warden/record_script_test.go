package main

import (
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/etcd-warden/etcd-warden/ownership/ownertest"
)

// recordKey is where a script's own name server is kept.
type recordKey struct{}

// giveRecord gives each script a name server of its own for owner.test., at $RECORD. It has no record yet.
func giveRecord(e *testscript.Env) error {
	server, err := ownertest.Listen("owner.test.")
	if err != nil {
		return err
	}
	e.Defer(func() { server.Close() })
	e.Values[recordKey{}] = server
	e.Setenv("RECORD", server.Addr())
	return nil
}

// record is `record set TTL VALUE…`, `record delete` and `record misbehave [HOW]`, with a behaviour of ownertest.
func record(ts *testscript.TestScript, _ bool, args []string) {
	server := ts.Value(recordKey{}).(*ownertest.Server)
	switch {
	case len(args) >= 3 && args[0] == "set":
		ttl, err := time.ParseDuration(args[1])
		ts.Check(err)
		server.SetRecords(ttl, args[2:]...)
	case len(args) == 1 && args[0] == "delete":
		server.Delete()
	case len(args) == 1 && args[0] == "misbehave":
		server.Misbehave(ownertest.Proper)
	case len(args) == 2 && args[0] == "misbehave":
		server.Misbehave(ownertest.Behaviour(args[1]))
	default:
		ts.Fatalf("usage: record set TTL VALUE… | delete | misbehave [HOW]")
	}
}
