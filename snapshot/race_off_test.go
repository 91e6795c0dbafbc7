//go:build !race

package snapshot_test

const raceDetector = false
