package ownership

import (
	"strings"
	"testing"
)

// A damaged final ends the generation and is not continued from: a claim names another snapshot, and only of a final that
// is damaged may it.
func TestDamagedFinalIsClaimedFromAnotherSnapshotOnly(t *testing.T) {
	a, b := Author{"a", "instance-a"}, Author{"b", "instance-b"}
	open, err := NextOpen(Head{Empty: true}, a, testTime(), "")
	if err != nil {
		t.Fatal(err)
	}
	final, err := NextFinal(Head{Entry: open}, a, testTime(), testSnapshot(1))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NextClaim(Head{Entry: final}, b, testTime(), 1, testSnapshot(2)); err == nil {
		t.Error("a whole final may be passed over")
	}
	final.Damaged = "entries 3 to 5 are in the log only"
	head := Head{Entry: final}
	if !head.Closed() || !strings.Contains(head.Describe(), "damaged final") {
		t.Errorf("the head is %s, closed %v", head.Describe(), head.Closed())
	}
	claim, err := NextClaim(head, b, testTime(), 1, testSnapshot(2))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := CheckJournal([]Entry{open, final, claim}); err != nil {
		t.Error(err)
	}
	encoded, err := final.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if back, err := DecodeEntry(encoded); err != nil || back.Damaged != final.Damaged {
		t.Errorf("decoded %+v, %v", back, err)
	}
	claim.Damaged = "x"
	if claim.Validate() == nil {
		t.Error("a claim can be damaged")
	}
}
