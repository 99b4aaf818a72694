package plan

import (
	"strings"
	"testing"
)

// TestColours checks that escape codes surround symbols and words only.
func TestColours(t *testing.T) {
	d, schema := decided(t, `{"name":"a","id":"i","size":5,"token":"t","limits":[],"zone":"z1","list":["x"]}`, `{"name":"a","zone":"z2","list":["y"]}`)
	d.Address.Namespace = "shop"
	c := changeOf(t, d, schema, ChangeOptions{Salt: testSalt})
	render := func(r Renderer) string {
		var out strings.Builder
		if err := r.Change(&out, c); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	plain, coloured := render(Renderer{}), render(Renderer{Color: true})
	for _, code := range []string{"0", "1", "1;31", "31", "32", "33", "90"} {
		coloured = strings.ReplaceAll(coloured, "\x1b["+code+"m", "")
	}
	if coloured != plain {
		t.Errorf("without escape codes it is\n%s", coloured)
	}
	if !strings.Contains(plain, `# namespace["shop"].demo_thing["main"] must be`) || strings.Contains(render(Renderer{Namespace: "shop"}), "shop") {
		t.Errorf("the namespace is misplaced or missing:\n%s", plain)
	}
}

// TestLongLists checks that lists beyond maxCells are shown.
func TestLongLists(t *testing.T) {
	leaves := func(from, n int) *node {
		out := &node{kind: listNode}
		for i := range n {
			out.children = append(out.children, &node{kind: leafNode, raw: []byte{byte('a' + (from+i)%26)}})
		}
		return out
	}
	a, b := leaves(0, 3000), leaves(1, 3000)
	d := diff(a, b, "x")
	before, after := 0, 0
	for _, one := range d.children {
		if one.sign != '+' {
			before++
		}
		if one.sign != '-' {
			after++
		}
	}
	if before != 3000 || after != 3000 {
		t.Errorf("%d before, %d after", before, after)
	}
}

func TestLegend(t *testing.T) {
	got := Renderer{}.Legend(Counts{Create: 1, Read: 1})
	if want := "  + create\n <= read (data sources)\n"; got != want {
		t.Errorf("got\n%s", got)
	}
}
