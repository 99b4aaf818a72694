package change

import "testing"

// TestLongLists checks that lists beyond maxCells are shown.
func TestLongLists(t *testing.T) {
	leaves := func(from, n int) *Node {
		out := &Node{Kind: ListNode}
		for i := range n {
			out.Children = append(out.Children, &Node{Kind: LeafNode, Raw: []byte{byte('a' + (from+i)%26)}})
		}
		return out
	}
	a, b := leaves(0, 3000), leaves(1, 3000)
	d := Compare(a, b, "x")
	before, after := 0, 0
	for _, one := range d.Children {
		if one.Sign != '+' {
			before++
		}
		if one.Sign != '-' {
			after++
		}
	}
	if before != 3000 || after != 3000 {
		t.Errorf("%d before, %d after", before, after)
	}
}
