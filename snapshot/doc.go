// Package snapshot takes the state of an etcd out of it, keeps it in a store, and makes a data directory of it again.
//
// # Guarantees
//
//   - A capture of a dead etcd holds every write it acknowledged: Offline.Proof compares the backend's consistent index
//     with the last entry of the write-ahead log, and nothing else decides. How etcd ended does not matter.
//   - Nothing here reads the files of an etcd that lives: OpenOffline takes the lock that etcd holds, and keeps it.
//   - What is written is etcd's own snapshot file, byte for byte in format: `etcdutl snapshot restore` takes it.
//   - A restore verifies all of the file before it touches the target, and renames what it replaces; it removes nothing
//     but its own scratch directories.
//
// The package is the only one that imports etcd's own modules and the S3 client.
package snapshot
