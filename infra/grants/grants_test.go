package grants

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const demo = "demo.providers.atoll.dev"

func TestDecide(t *testing.T) {
	from, to := From{demo, "File", "a"}, To{demo, "Network", "main"}
	other := From{demo, "File", "c"}
	for name, tt := range map[string]struct {
		grants []Spec
		want   Access
	}{
		"no grant":                        {nil, None},
		"all objects of the kind":         {[]Spec{{[]From{from}, []To{{demo, "Network", ""}}}}, Public},
		"the object by its name":          {[]Spec{{[]From{from}, []To{to}}}, All},
		"any of several":                  {[]Spec{{[]From{other, from}, []To{{demo, "Disk", ""}, {demo, "Network", "other"}, {demo, "Network", ""}}}}, Public},
		"the most of several grants":      {[]Spec{{[]From{from}, []To{{demo, "Network", ""}}}, {[]From{from}, []To{to}}}, All},
		"another namespace":               {[]Spec{{[]From{other}, []To{to}}}, None},
		"another kind that refers":        {[]Spec{{[]From{{demo, "Disk", "a"}}, []To{to}}}, None},
		"another group that refers":       {[]Spec{{[]From{{"", "File", "a"}}, []To{to}}}, None},
		"another name":                    {[]Spec{{[]From{from}, []To{{demo, "Network", "other"}}}}, None},
		"another kind":                    {[]Spec{{[]From{from}, []To{{demo, "Disk", "main"}}}}, None},
		"another group":                   {[]Spec{{[]From{from}, []To{{"", "Network", "main"}}}}, None},
		"from and to of different grants": {[]Spec{{[]From{from}, []To{{demo, "Disk", ""}}}, {[]From{other}, []To{to}}}, None},
		"nothing listed":                  {[]Spec{{}, {From: []From{from}}, {To: []To{to}}}, None},
	} {
		if got := Decide(tt.grants, from, to); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
}

// TestRefusalsNameTheGrant: the spec in a refusal is YAML that allows the reference.
func TestRefusalsNameTheGrant(t *testing.T) {
	for _, to := range []To{{demo, "Network", "main"}, {"", "ConfigMap", "x"}} {
		from := From{demo, "File", "a"}
		for _, text := range []string{Refusal(from, "b", to), SensitiveRefusal(from, "b", to)} {
			if !strings.Contains(text, "namespace b") || !strings.Contains(text, to.Name) {
				t.Errorf("got %q", text)
			}
			_, spec, _ := strings.Cut(text, "with spec ")
			var grant Spec
			if err := yaml.UnmarshalStrict([]byte(spec), &grant); err != nil || Decide([]Spec{grant}, from, to) != All {
				t.Errorf("the grant of %q is %+v, %v", text, grant, err)
			}
		}
	}
}
