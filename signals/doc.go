// Package signals is the warden's side of the kernel's two notices to a parent: signals and child statuses.
//
//   - notify.go: one Inbox for every signal that can be caught, registered first thing in main.
//   - note.go: the few signals that os/signal cannot deliver or cannot tell apart, by a handler of our own.
//   - forward.go: the policy table of all 64 signals, a pure function.
//   - reap.go: the Reaper, the only wait in the program.
//   - subreaper.go: adoption of orphans when the warden is not PID 1.
//
// What is guaranteed: no signal that arrives after Notify is lost (of one number several may become one, as in the
// kernel); no status of a registered child is lost; a signal sent through a Process never reaches a stranger that got
// the same PID later.
package signals
