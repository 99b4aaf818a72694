package decide

import (
	"strings"
	"testing"

	"github.com/atoll-dev/atoll/infra/render"
)

// TestColours checks that escape codes surround symbols and words only.
func TestColours(t *testing.T) {
	d, schema := decided(t, `{"name":"a","id":"i","size":5,"token":"t","limits":[],"zone":"z1","list":["x"]}`, `{"name":"a","zone":"z2","list":["y"]}`)
	d.Address.Namespace = "shop"
	c := changeOf(t, d, schema, ChangeOptions{Salt: testSalt})
	text := func(r render.Renderer) string {
		var out strings.Builder
		if err := r.Change(&out, c); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	plain, coloured := text(render.Renderer{}), text(render.Renderer{Color: true})
	for _, code := range []string{"0", "1", "1;31", "31", "32", "33", "90"} {
		coloured = strings.ReplaceAll(coloured, "\x1b["+code+"m", "")
	}
	if coloured != plain {
		t.Errorf("without escape codes it is\n%s", coloured)
	}
	if !strings.Contains(plain, `# namespace["shop"].demo_thing["main"] must be`) || strings.Contains(text(render.Renderer{Namespace: "shop"}), "shop") {
		t.Errorf("the namespace is misplaced or missing:\n%s", plain)
	}
}
