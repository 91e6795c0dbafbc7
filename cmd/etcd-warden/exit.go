package main

import (
	"context"
	"errors"

	"github.com/etcd-warden/etcd-warden/snapshot"
	"github.com/etcd-warden/etcd-warden/supervisor"
)

// The exit codes of our own; docs/exit-codes.md is their table. A supervised command's code is passed on as it is, 128+n
// when signal n ended it; they are taken from sysexits.h where one fits, so that few programs use the same.
const (
	exitFailure       = 1   // anything that has no code of its own
	exitUsage         = 64  // bad flag, variable, configuration, URL
	exitData          = 65  // a snapshot that is cut short, changed, or not what its manifest says
	exitNoDirectory   = 66  // the data directory is missing, unreadable, in use, or not empty where it must be
	exitStore         = 69  // the store refused or could not be reached
	exitUnfinished    = 75  // stopped while the final snapshot was still owed; the next start resumes
	exitFenced        = 76  // ownership lost, final snapshot committed (--exit-when-fenced)
	exitSuperseded    = 77  // somebody else ended the generation; this site's data is kept and was uploaded under late/
	exitOther         = 80  // owner check: the record names another
	exitNone          = 81  // owner check: there is no record
	exitUnclear       = 82  // owner check: several records, a broken one, or servers that disagree
	exitPollFailed    = 83  // owner check: nobody gave an answer that can be used
	exitNotReady      = 3   // status: the warden answers, and is not ready
	exitTimedOut      = 124 // await-final: not there within --timeout (as timeout(1))
	exitNotExecutable = 126 // the command cannot be executed
	exitNotFound      = 127 // the command was not found
)

// errTimedOut is returned by await-final when --timeout ended the wait.
var errTimedOut = errors.New("no final snapshot in time")

// exitCode is the one table from errors to exit codes.
func exitCode(err error) int {
	var exec *supervisor.ExecError
	var corrupt *snapshot.CorruptError
	var conf *configError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exec):
		return exec.Code
	case errors.As(err, &conf), errors.Is(err, snapshot.ErrInvalid), errors.Is(err, supervisor.ErrMembers), errors.Is(err, supervisor.ErrNothing),
		errors.Is(err, supervisor.ErrNoIfAbsent):
		return exitUsage
	case errors.Is(err, supervisor.ErrDamagedFinal), errors.As(err, &corrupt), errors.Is(err, snapshot.ErrBadSnapshot), errors.Is(err, snapshot.ErrCannotRun), errors.Is(err, snapshot.ErrStorageNewer):
		return exitData
	case errors.Is(err, supervisor.ErrDirInUse), errors.Is(err, snapshot.ErrInUse), errors.Is(err, snapshot.ErrNoDataDir), errors.Is(err, supervisor.ErrDataDir),
		errors.Is(err, snapshot.ErrTargetNotEmpty):
		return exitNoDirectory
	case errors.Is(err, supervisor.ErrUnfinished):
		return exitUnfinished
	case errors.Is(err, supervisor.ErrFenced):
		return exitFenced
	case errors.Is(err, supervisor.ErrSuperseded):
		return exitSuperseded
	case errors.Is(err, errNotReady):
		return exitNotReady
	case errors.Is(err, errTimedOut), errors.Is(err, context.DeadlineExceeded):
		return exitTimedOut
	case errors.Is(err, snapshot.ErrDenied), errors.Is(err, snapshot.ErrUnavailable), errors.Is(err, snapshot.ErrNotFound),
		errors.Is(err, snapshot.ErrNoStore), errors.Is(err, snapshot.ErrFull), errors.Is(err, supervisor.ErrStillOpen):
		return exitStore
	}
	return exitFailure
}
