package terminal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/adopt"
)

// Export is how a state file is written.
type Export struct {
	// After is the state file that what is written comes after, if there is one: it gives the lineage, the serial and the
	// outputs.
	After io.Reader
	// Providers are as in Adoption.
	Providers []string
}

// ExportState writes a state file of OpenTofu of all resources of the namespace. It has everything, secrets too.
func (s *Session) ExportState(ctx context.Context, out io.Writer, how *Export) error {
	header, err := headerAfter(how.After)
	if err != nil {
		return err
	}
	if header.Providers, err = s.addresses(ctx, how.Providers); err != nil {
		return err
	}
	// All states are held: what is written is sorted by addresses, which nothing else is.
	var items []adopt.Item
	var states []*v1alpha1.ResourceStateSpec
	var pending []string
	err = s.eachObject(ctx, v1alpha1.ResourceStateResource, func(u *unstructured.Unstructured) error {
		state, err := typed[v1alpha1.ResourceState](u)
		if err != nil {
			return err
		}
		if state.Spec.Pending != nil {
			pending = append(pending, state.Name)
		}
		if state.Spec.Current == nil && len(state.Spec.Deposed) == 0 {
			return nil
		}
		items = append(items, adopt.Item{
			StateName: state.Name, Type: state.Spec.Type, Name: state.Spec.Object.Name,
			Provider: state.Spec.Provider, ProviderConfig: state.Spec.ProviderConfig, Annotations: state.Annotations,
		})
		states = append(states, &state.Spec)
		return nil
	})
	if err != nil {
		return err
	}
	if len(pending) > 0 {
		return fmt.Errorf("changes of %s were begun, and have not ended: wait for the apply, or plan and apply again, and export then", shortened(pending))
	}
	if err := s.annotated(ctx, items, states); err != nil {
		return err
	}
	if _, err := adopt.Export(out, *header, items, func(item int) (*v1alpha1.ResourceStateSpec, error) { return states[item], nil }); err != nil {
		return fmt.Errorf("write the state: %w", err)
	}
	s.tell("%s of namespace %s written, as serial %d of lineage %s.", counted(len(items), "resource"), s.Namespace, header.Serial, header.Lineage)
	return nil
}

// headerAfter is the header of the state that comes after another one, or of the first of its lineage.
func headerAfter(after io.Reader) (*adopt.Header, error) {
	if after == nil {
		return &adopt.Header{Lineage: string(uuid.NewUUID()), Serial: 1}, nil
	}
	var was struct {
		Version          int64                      `json:"version"`
		TerraformVersion string                     `json:"terraform_version"`
		Serial           uint64                     `json:"serial"`
		Lineage          string                     `json:"lineage"`
		Outputs          map[string]json.RawMessage `json:"outputs"`
	}
	if err := json.NewDecoder(after).Decode(&was); err != nil {
		// What is said of JSON may quote a value.
		return nil, errors.New("--after: it cannot be read: name a state file, as `tofu state pull` prints it")
	}
	if was.Version != 4 || was.Lineage == "" {
		return nil, fmt.Errorf("--after: it is of version %d, or has no lineage: name a state file of version 4, as `tofu state pull` prints it", was.Version)
	}
	return &adopt.Header{Lineage: was.Lineage, Serial: was.Serial + 1, TerraformVersion: was.TerraformVersion, Outputs: was.Outputs}, nil
}

// addresses are those of all providers' configurations that there are, and what was said of others.
func (s *Session) addresses(ctx context.Context, given []string) (adopt.Providers, error) {
	out, err := saidProviders(given)
	if err != nil {
		return nil, err
	}
	said := slices.Collect(maps.Values(out))
	installed, err := s.installed(ctx)
	if err != nil {
		return nil, err
	}
	add := func(address string, target adopt.Target) {
		if _, is := out[address]; !is && !slices.Contains(said, target) {
			out[address] = target
		}
	}
	for _, p := range installed {
		address := fmt.Sprintf("provider[%q]", p.source.String())
		add(address, adopt.Target{Provider: p.name})
		for _, config := range p.configs {
			if config != p.name {
				add(address+"."+config, adopt.Target{Provider: p.name, Config: config})
			}
		}
	}
	return out, nil
}

// annotated gives items the annotations of their objects, which last longer than those of states.
func (s *Session) annotated(ctx context.Context, items []adopt.Item, states []*v1alpha1.ResourceStateSpec) error {
	type owner struct{ group, kind string }
	of := map[owner]map[string]int{}
	for i, state := range states {
		o := owner{state.Object.Group, state.Object.Kind}
		if of[o] == nil {
			of[o] = map[string]int{}
		}
		of[o][state.Object.Name] = i
	}
	known, err := s.kinds()
	if err != nil {
		return err
	}
	for _, k := range known {
		names := of[owner{k.Group, k.name}]
		if names == nil {
			continue
		}
		err := s.eachObject(ctx, schema.GroupVersionResource{Group: k.Group, Version: k.Version, Resource: k.Resource}, func(u *unstructured.Unstructured) error {
			i, is := names[u.GetName()]
			if !is || string(u.GetUID()) != states[i].Object.UID {
				return nil
			}
			merged := map[string]string{}
			for key, value := range u.GetAnnotations() {
				if strings.HasPrefix(key, v1alpha1.Group+"/") {
					merged[key] = value
				}
			}
			items[i].Annotations = merged
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
