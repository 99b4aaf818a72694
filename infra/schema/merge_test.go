package schema

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/merge"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

type sameVersion struct{}

func (sameVersion) Convert(object *typed.TypedValue, _ fieldpath.APIVersion) (*typed.TypedValue, error) {
	return object, nil
}

func (sameVersion) IsMissingVersionError(error) bool { return false }

// TestServerSideApply applies specs one after the other, given as "who: spec"; "who!" forces. It
// compares the resulting spec, or the fields in conflict.
func TestServerSideApply(t *testing.T) {
	for _, test := range []struct {
		name    string
		applied []string
		want    string
	}{
		{"fields of several", []string{`a: {name: x}`, `b: {cpus: 1}`}, `{name: x, cpus: 1}`},
		{"a field of another", []string{`a: {name: x}`, `b: {name: z}`}, `conflict: .spec.name`},
		{"a set has an owner for each element", []string{`a: {groups: [x]}`, `b: {groups: [z]}`}, `{groups: [x, z]}`},
		{"who leaves a set takes his own along", []string{`a: {groups: [x]}`, `b: {groups: [z]}`, `a: {}`}, `{groups: [z]}`},
		{"a list has one owner", []string{`a: {dns: [x]}`, `b: {dns: [z]}`}, `conflict: .spec.dns`},
		{"a map has an owner for each entry", []string{`a: {tags: {x: x}}`, `b: {tags: {z: z}}`}, `{tags: {x: x, z: z}}`},
		{"fields of an object", []string{`a: {size: {width: 1}}`, `b: {size: {roles: [z]}}`}, `{size: {width: 1, roles: [z]}}`},
		{"a set within an object has one owner", []string{`a: {size: {roles: [x]}}`, `b: {size: {roles: [z]}}`}, `conflict: .spec.size.roles`},
		{"another's block as a list", []string{`a: {network: {cidrs: [x]}}`, `b: {network: [{cidrs: [z]}]}`}, `conflict: .spec.network`},
		{"an expression for another's block", []string{`a: {network: {cidrs: [x]}}`, `b: {network: "${x}"}`}, `conflict: .spec.network`},
		{"blocks by name", []string{`a: {label: {x: {value: x}}}`, `b: {label: {z: {value: z}}}`}, `{label: {x: {value: x}, z: {value: z}}}`},
		{"repeated blocks have one owner", []string{`a: {disk: [{gigabytes: 1}]}`, `b: {disk: [{gigabytes: 2}]}`}, `conflict: .spec.disk`},
		{"an expression for a set", []string{`a: {groups: [x]}`, `a: {groups: "${x}"}`}, `{groups: "${x}"}`},
		{"an expression for another's map", []string{`a: {tags: {x: x}}`, `b: {tags: "${x}"}`}, `conflict: .spec.tags`},
		{"an expression for another's map, forced", []string{`a: {tags: {x: x}}`, `b!: {tags: "${x}"}`}, `{tags: "${x}"}`},
		{"a map for an expression", []string{`a: {tags: "${x}"}`, `a: {tags: {x: x}}`}, `{tags: {x: x}}`},
		{"blocks for an expression", []string{`a: {network: "${x}"}`, `a: {network: {cidrs: [x]}}`}, `{network: {cidrs: [x]}}`},
		{"a Secret has one owner", []string{`a: {password: {secretKeyRef: {name: s, key: k}}}`, `b: {password: {secretKeyRef: {name: t}}}`}, `conflict: .spec.password`},
		{"what depends", []string{`a: {depends_on: [x], lifecycle: {ignore_changes: [x]}}`, `b: {depends_on: [z], lifecycle: {ignore_changes: [z]}}`},
			`{depends_on: [x, z], lifecycle: {ignore_changes: [x, z]}}`},
		{"a field that there is not", []string{`a: {gone: {x: [1]}}`, `b: {name: x}`}, `{gone: {x: [1]}, name: x}`},
		{"an object where a set should be", []string{`a: {groups: {x: z}}`}, `{groups: {x: z}}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got, want := applyAll(t, test.applied), test.want; strings.HasPrefix(want, "conflict") {
				if diff := cmp.Diff(want, got); diff != "" {
					t.Error(diff)
				}
			} else if diff := cmp.Diff(map[string]any{"spec": object(t, want)}, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// applyAll returns the resulting spec, or the fields in which the last apply conflicts.
func applyAll(t *testing.T, applied []string) any {
	t.Helper()
	ty := NewMergeTypes().Of(&server().Block)
	updater := (&merge.UpdaterBuilder{Converter: sameVersion{}}).BuildUpdater()
	live, err := ty.FromUnstructured(map[string]any{})
	if err != nil {
		t.Fatal(err)
	}
	managers := fieldpath.ManagedFields{}
	for _, line := range applied {
		who, spec, _ := strings.Cut(line, ": ")
		config, err := ty.FromUnstructured(map[string]any{"spec": object(t, spec)})
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		who, force := strings.CutSuffix(who, "!")
		next, owners, err := updater.Apply(live, config, "v1", managers, who, force)
		var conflicts merge.Conflicts
		switch {
		case errors.As(err, &conflicts):
			set := conflicts.ToSet()
			var paths []string
			set.Iterate(func(p fieldpath.Path) { paths = append(paths, p.String()) })
			return "conflict: " + strings.Join(paths, ", ")
		case err != nil:
			t.Fatalf("%s: %v", line, err)
		}
		managers = owners
		if next != nil {
			live = next
		}
	}
	return live.AsValue().Unstructured()
}

// TestMergeOfMetadataAndStatus: conditions are merged by type, owners by UID, and attributes are
// atomic.
func TestMergeOfMetadataAndStatus(t *testing.T) {
	ty := NewMergeTypes().Of(&server().Block)
	v, err := ty.FromUnstructured(object(t, `
metadata: {name: x, finalizers: [f], labels: {l: "1"}, ownerReferences: [{uid: u, name: n}], creationTimestamp: null}
status: {attributes: {id: x, list: [1]}, conditions: [{type: Ready, status: "True"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	set, err := v.ToFieldSet()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	set.Leaves().Iterate(func(p fieldpath.Path) { got = append(got, p.String()) })
	want := []string{
		`.metadata.creationTimestamp`, `.metadata.name`, `.metadata.finalizers[="f"]`, `.metadata.labels.l`,
		`.metadata.ownerReferences[uid="u"]`,
		`.status.attributes`, `.status.conditions[type="Ready"].status`, `.status.conditions[type="Ready"].type`,
	}
	if diff := cmp.Diff(fmt.Sprint(want), fmt.Sprint(got)); diff != "" {
		t.Error(diff)
	}
}
