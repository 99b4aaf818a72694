package cliview

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
	"github.com/atoll-dev/atoll/infra/statefile"
)

// ExportOptions configure ExportState.
type ExportOptions struct {
	// After is the preceding state file, if there is one: it provides the lineage, the serial and the
	// outputs.
	After io.Reader
	// Providers are as in StateImport.
	Providers []string
}

// ExportState writes an OpenTofu state file with all resources of the namespace, including secrets.
func (s *Session) ExportState(ctx context.Context, out io.Writer, opts *ExportOptions) error {
	header, err := headerAfter(opts.After)
	if err != nil {
		return err
	}
	if header.Providers, err = s.addresses(ctx, opts.Providers); err != nil {
		return err
	}
	// All states are held in memory, because the file is sorted by address and the store is not.
	var items []statefile.Item
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
		items = append(items, statefile.Item{
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
		return fmt.Errorf("changes of %s are unfinished: wait for the apply, or plan and apply again, then export", shortened(pending))
	}
	if err := s.addAnnotations(ctx, items, states); err != nil {
		return err
	}
	if _, err := statefile.Export(out, *header, items, func(item int) (*v1alpha1.ResourceStateSpec, error) { return states[item], nil }); err != nil {
		return fmt.Errorf("write the state: %w", err)
	}
	s.infof("Exported %s of namespace %s as serial %d of lineage %s.", counted(len(items), "resource"), s.Namespace, header.Serial, header.Lineage)
	return nil
}

// headerAfter returns the header that follows a preceding state, or that of a new lineage.
func headerAfter(after io.Reader) (*statefile.Header, error) {
	if after == nil {
		return &statefile.Header{Lineage: string(uuid.NewUUID()), Serial: 1}, nil
	}
	var previous struct {
		Version          int64                      `json:"version"`
		TerraformVersion string                     `json:"terraform_version"`
		Serial           uint64                     `json:"serial"`
		Lineage          string                     `json:"lineage"`
		Outputs          map[string]json.RawMessage `json:"outputs"`
	}
	if err := json.NewDecoder(after).Decode(&previous); err != nil {
		// A JSON error may quote a value.
		return nil, errors.New("--after: invalid state file: use the output of `tofu state pull`")
	}
	if previous.Version != 4 || previous.Lineage == "" {
		return nil, fmt.Errorf("--after: the state file has version %d or no lineage: use one of version 4, as `tofu state pull` prints it", previous.Version)
	}
	return &statefile.Header{Lineage: previous.Lineage, Serial: previous.Serial + 1, TerraformVersion: previous.TerraformVersion, Outputs: previous.Outputs}, nil
}

// addresses maps all installed provider configurations to addresses, and applies the given ones.
func (s *Session) addresses(ctx context.Context, given []string) (statefile.Providers, error) {
	out, err := parseTargets(given)
	if err != nil {
		return nil, err
	}
	targets := slices.Collect(maps.Values(out))
	installed, err := s.installed(ctx)
	if err != nil {
		return nil, err
	}
	add := func(address string, target statefile.Target) {
		if _, is := out[address]; !is && !slices.Contains(targets, target) {
			out[address] = target
		}
	}
	for _, p := range installed {
		address := fmt.Sprintf("provider[%q]", p.source.String())
		add(address, statefile.Target{Provider: p.name})
		for _, config := range p.configs {
			if config != p.name {
				add(address+"."+config, statefile.Target{Provider: p.name, Config: config})
			}
		}
	}
	return out, nil
}

// addAnnotations copies the annotations of objects to the items: they outlive those of states.
func (s *Session) addAnnotations(ctx context.Context, items []statefile.Item, states []*v1alpha1.ResourceStateSpec) error {
	type owner struct{ group, kind string }
	byOwner := map[owner]map[string]int{}
	for i, state := range states {
		o := owner{state.Object.Group, state.Object.Kind}
		if byOwner[o] == nil {
			byOwner[o] = map[string]int{}
		}
		byOwner[o][state.Object.Name] = i
	}
	known, err := s.kinds()
	if err != nil {
		return err
	}
	for _, k := range known {
		names := byOwner[owner{k.Group, k.name}]
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
