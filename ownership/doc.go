// Package ownership decides whether this site's etcd may serve.
//
// DNS is a slow, lying, one-way notice and never a lock. So three things decide together:
//
//   - The record, polled by [Resolver] and [Watcher], says who should serve. One poll gives one [Verdict].
//   - The lease bounds how long a proof that the record is ours lasts: DNS trouble is ridden out until then, and no longer.
//   - The journal, write-once entries in the object store, arbitrates what DNS cannot: one end for each generation, one
//     claim of the next. This package has its rules ([NextOpen] and its siblings, [CheckJournal]) and no store.
//
// [Machine] holds all that is decided, as a value without clock or I/O:
//
//	m, actions := m.Step(event, now)
//
// # Guarantees
//
//  1. Nothing but [Serve] starts etcd for clients, and it comes only right after an entry of ours was made in the journal, newer than
//     any sign of a loss (without a store: after [Settings.RegainCount] answers over a TTL).
//  2. Only answers that name someone else, confirmed, or the journal, are a loss. Everything else leaves the lease running.
//  3. A lease counts from the moment at which the authority surely said "ours": a cached answer is as old as it may be.
//  4. A generation is abandoned only when our own proofs were without a gap for longer than its holder's lease can last.
//  5. Nothing between a decision and [Fence] asks store, disk or DNS.
//
// The tests search every reachable state of two sites around the real Machine, and show that each rule is needed.
//
// What is assumed: the warden that holds the lease runs. One that is stopped (SIGSTOP, a debugger) cannot fence its etcd; its lease
// ends without it. Moves of the record are at least [Settings.MaxGap] apart.
package ownership
