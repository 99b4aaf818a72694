package infra

import (
	"testing"

	"github.com/atoll-dev/atoll/infra/plan"
)

func TestFirstPlan(t *testing.T) {
	s := newStand()
	e := s.engine(t, nil)
	e.World.SetObject(written(thing("a"), 1, `{"content": "one"}`))
	e.World.SetObject(written(thing("b"), 1, `{"content": "${demo_thing[\"a\"].id}"}`))
	e.World.SetObject(written(image("i"), 1, `{"filter": "x"}`))
	e.World.SetObject(written(thing("c"), 1, `{"content": "${data.demo_image[\"i\"].id}"}`))
	planned, store := planOf(t, e, Planning{})
	got := actions(t, planned, store)
	want := `create demo_thing["a"]
create demo_thing["b"]
create demo_thing["c"]`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if planned.Contents.Counts.Changes != 4 || len(planned.Read) != 1 || planned.NotPlanned != 0 || planned.Calls != len(s.took()) {
		t.Errorf("%+v", planned)
	}
	list, _ := store.changes(t, planned, testSalt)
	if list[3].Address.Name != "c" && list[3].Action != plan.Create {
		t.Errorf("%+v", list[3])
	}
}
