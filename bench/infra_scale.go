package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/plugin"
	infraschema "github.com/atoll-dev/atoll/infra/schema"
)

// Shapes of references among resources.
const (
	flatShape  = "flat"
	chainShape = "100 chains"
	crossShape = "cross"

	chains = 100
	// crossRefs is the number of references from each resource of the second half to the first half.
	crossRefs = 3
)

// The measured steps, in this order.
const (
	stepWrite   = "write"
	stepPlan    = "first plan"
	stepApply   = "apply"
	stepNothing = "nothing to do"
	// stepRefresh reads every resource from the provider first, which is OpenTofu's default.
	stepRefresh = "nothing to do, refreshed"
	stepOne     = "one change"
)

// infraRun is one step with one size and shape, in OpenTofu or Atoll.
type infraRun struct {
	System  string  `json:"system"`
	Shape   string  `json:"shape"`
	Count   int     `json:"count"`
	Step    string  `json:"step"`
	Seconds float64 `json:"seconds"`
	// CPU time of all processes, including the provider's, and their peak memory together.
	CPU     float64 `json:"cpu_s"`
	PeakMiB float64 `json:"peak_mib"`
	// Provider holds the durations of the provider's own calls, before and after the first plan.
	Provider []float64 `json:"provider_s,omitempty"`
	Failed   string    `json:"failed,omitempty"`
	// CPUs that were used or taken by others meanwhile.
	disturbance
}

// infraTimeout is the timeout of one step. Above tofuMaxResources OpenTofu is not measured, because it would take too long.
// providerCalls limits the provider's own calls.
const (
	infraTimeout     = time.Hour
	tofuMaxResources = 20_000
	providerCalls    = 100_000
)

// infraScale is the setup that all sizes share.
type infraScale struct {
	tofu string
	// development is the path of the provider's executable, in a directory with its settings.
	development string
	typ         string
	// references are string arguments that can refer to other resources.
	references []string
	profile    string
	// firstPlans is the number of first plans to measure, 0 for one and all other steps. callers is the number of parallel
	// callers of the provider's own calls.
	firstPlans, callers int
}

// measureInfra plans and applies growing numbers of resources.
func (r *report) measureInfra(ctx context.Context, o options, dir string) error {
	var sizes []int
	for text := range strings.SplitSeq(o.resources, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil || n < chains {
			return fmt.Errorf("-resources %q: %q is not a number of at least %d", o.resources, text, chains)
		}
		sizes = append(sizes, n)
	}
	if o.callers < 1 {
		return fmt.Errorf("-callers %d: must be at least 1", o.callers)
	}
	s, err := newInfraScale(ctx, o, dir)
	if err != nil {
		return err
	}
	defer func() { writeInfra(os.Stdout, r.Infra) }()
	for _, count := range sizes {
		for _, shape := range strings.Split(o.shapes, ",") {
			shape = strings.TrimSpace(shape)
			if shape == "chains" {
				shape = chainShape
			}
			if shape != flatShape && shape != chainShape && shape != crossShape {
				return fmt.Errorf("-shapes %q: %q must be %s, chains or %s", o.shapes, shape, flatShape, crossShape)
			}
			at := filepath.Join(dir, fmt.Sprintf("%s-%d", strings.ReplaceAll(shape, " ", "-"), count))
			ours, err := s.runAtoll(ctx, at+"-atoll", shape, count)
			r.Infra = append(r.Infra, ours...)
			if err != nil {
				return fmt.Errorf("atoll, %s, %d: %w", shape, count, err)
			}
			if o.alone || o.firstPlans > 0 || count > tofuMaxResources {
				continue
			}
			theirs, err := s.runTofu(ctx, at+"-tofu", shape, count)
			r.Infra = append(r.Infra, theirs...)
			if err != nil {
				return fmt.Errorf("opentofu, %s, %d: %w", shape, count, err)
			}
			if err := os.RemoveAll(at + "-tofu"); err != nil {
				return err
			}
		}
	}
	return nil
}

func newInfraScale(ctx context.Context, o options, dir string) (*infraScale, error) {
	s := &infraScale{profile: o.profile, firstPlans: o.firstPlans, callers: o.callers}
	var err error
	if !o.alone && o.firstPlans == 0 {
		if s.tofu, err = tofuProgram(ctx, o.tofu, dir); err != nil {
			return nil, err
		}
	}
	built, err := buildProviders(ctx, filepath.Join(dir, "mirror"), wideProvider)
	if err != nil {
		return nil, err
	}
	// One type is enough: OpenTofu reads the schemas of all types with each command.
	at := filepath.Join(dir, "provider")
	if err := os.MkdirAll(at, 0o755); err != nil {
		return nil, err
	}
	found, err := filepath.Glob(filepath.Join(built[0].Unpacked, "terraform-provider-*"))
	if err != nil || len(found) != 1 {
		return nil, fmt.Errorf("no provider executable in %s", built[0].Unpacked)
	}
	s.development = filepath.Join(at, "terraform-provider-"+wideProvider)
	if err := exec.Command("cp", found[0], s.development).Run(); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(at, "settings.env"), []byte("WIDE_TYPES=1\n"), 0o644); err != nil {
		return nil, err
	}
	catalog, err := catalogOf(ctx, builtProvider{Unpacked: at})
	if err != nil {
		return nil, err
	}
	s.typ = catalog.Resources()[0]
	return s, s.chooseReferences(catalog)
}

// chooseReferences finds arguments that can refer to other resources.
func (s *infraScale) chooseReferences(catalog *plugin.Catalog) error {
	is, err := catalog.Resource(s.typ)
	if err != nil {
		return err
	}
	for _, a := range is.Block.Attributes {
		if a.Type == cty.String && a.Optional && !a.Computed && !a.Sensitive && a.Name != "zone" {
			s.references = append(s.references, a.Name)
		}
	}
	if len(s.references) < crossRefs {
		return errors.New("the provider's type has too few string arguments")
	}
	return nil
}

// referencesOf returns the resources that the nth one refers to.
func referencesOf(shape string, count, n int) []int {
	switch {
	case shape == chainShape && n >= chains:
		return []int{n - chains}
	case shape == crossShape && n >= count/2:
		half := count / 2
		return []int{n % half, (n * 7) % half, (n*31 + 11) % half}
	}
	return nil
}

func resourceName(n int) string { return fmt.Sprintf("r%06d", n) }

// body returns the arguments of the nth resource. OpenTofu and Atoll differ only in the syntax of references.
func (s *infraScale) body(shape string, count, n int, refer func(name string) string) map[string]any {
	body := map[string]any{"name": resourceName(n)}
	for i, used := range referencesOf(shape, count, n) {
		body[s.references[i]] = refer(resourceName(used))
	}
	return body
}

func (s *infraScale) group() string { return infraschema.Group(wideProvider) }
