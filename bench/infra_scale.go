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

	"github.com/atoll-dev/atoll/infra/provider"
	infraschema "github.com/atoll-dev/atoll/infra/schema"
)

// Shapes of references among resources.
const (
	flatShape  = "flat"
	chainShape = "100 chains"
	crossShape = "cross"

	chains = 100
	// crossRefs is how many of the first half each of the second half refers to.
	crossRefs = 3
)

// What is measured, in this order.
const (
	stepWrite   = "write"
	stepPlan    = "first plan"
	stepApply   = "apply"
	stepNothing = "nothing to do"
	// stepRefresh is with the provider asked what became of everything, which OpenTofu does unless it is told not to.
	stepRefresh = "nothing to do, refreshed"
	stepOne     = "one change"
)

// infraRun is one step of one size and shape, through one of both.
type infraRun struct {
	System  string  `json:"system"`
	Shape   string  `json:"shape"`
	Count   int     `json:"count"`
	Step    string  `json:"step"`
	Seconds float64 `json:"seconds"`
	// CPU of all processes, the provider's too, and the most that they held together.
	CPU     float64 `json:"cpu_s"`
	PeakMiB float64 `json:"peak_mib"`
	// Provider is how long the provider's own calls take for the first plan, by themselves, before it and after it.
	Provider []float64 `json:"provider_s,omitempty"`
	Failed   string    `json:"failed,omitempty"`
	// Others and Stolen are processors that somebody else had meanwhile.
	disturbance
}

// infraPatience is how long one step may take, and tofuMost up to how many resources OpenTofu is asked, unless chains or
// cross-references make it slower still.
const (
	infraPatience = time.Hour
	tofuMost      = 20_000
	providerCalls = 100_000
)

// infraScale is what all sizes have in common.
type infraScale struct {
	tofu string
	// development is the provider's executable, in a directory with its settings.
	development string
	typ         string
	// references are arguments that are text.
	references []string
	profile    string
	// callers is how many the provider's own calls have.
	firstPlans, callers int
}

// measureInfra plans and applies more and more resources.
func (r *report) measureInfra(ctx context.Context, o options, dir string) error {
	var sizes []int
	for text := range strings.SplitSeq(o.resources, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil || n < chains {
			return fmt.Errorf("-resources %q: %q is no number from %d on", o.resources, text, chains)
		}
		sizes = append(sizes, n)
	}
	if o.callers < 1 {
		return fmt.Errorf("-callers %d: there must be one at least", o.callers)
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
				return fmt.Errorf("-shapes %q: %q is none of %s, chains, %s", o.shapes, shape, flatShape, crossShape)
			}
			at := filepath.Join(dir, fmt.Sprintf("%s-%d", strings.ReplaceAll(shape, " ", "-"), count))
			ours, err := s.ours(ctx, at+"-atoll", shape, count)
			r.Infra = append(r.Infra, ours...)
			if err != nil {
				return fmt.Errorf("atoll, %s, %d: %w", shape, count, err)
			}
			if o.alone || o.firstPlans > 0 || count > tofuMost {
				continue
			}
			theirs, err := s.theirs(ctx, at+"-tofu", shape, count)
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
	// One type is enough: OpenTofu reads the schemas of all with each command.
	at := filepath.Join(dir, "provider")
	if err := os.MkdirAll(at, 0o755); err != nil {
		return nil, err
	}
	found, err := filepath.Glob(filepath.Join(built[0].Unpacked, "terraform-provider-*"))
	if err != nil || len(found) != 1 {
		return nil, fmt.Errorf("there is no provider in %s", built[0].Unpacked)
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
	return s, s.choose(catalog)
}

// choose finds arguments that can refer to others.
func (s *infraScale) choose(catalog *provider.Catalog) error {
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
		return errors.New("the provider's type has too few arguments that are text")
	}
	return nil
}

// uses are the resources that the nth one refers to.
func uses(shape string, count, n int) []int {
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

// body has the arguments of the nth one, which are the same for both but for how they refer.
func (s *infraScale) body(shape string, count, n int, refer func(name string) string) map[string]any {
	body := map[string]any{"name": resourceName(n)}
	for i, used := range uses(shape, count, n) {
		body[s.references[i]] = refer(resourceName(used))
	}
	return body
}

func (s *infraScale) group() string { return infraschema.Group(wideProvider) }
