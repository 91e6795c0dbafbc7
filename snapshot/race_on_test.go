//go:build race

package snapshot_test

// raceDetector: it multiplies memory and time.
const raceDetector = true
