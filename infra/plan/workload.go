package plan

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Workloads are objects of Kubernetes that run in member clusters. What is to become of them there is decided
// elsewhere; here it is a change among the others, so that it is shown, digested, approved and stored as they are.

// WorkloadAddress is that of an object of Kubernetes, as expressions name it: k8s["apps/v1"].Deployment["web"].
func WorkloadAddress(namespace, apiVersion, kind, name string) Address {
	return Address{Namespace: namespace, Type: workloadPrefix + strconv.Quote(apiVersion) + "]." + kind, Name: name}
}

// workloadPrefix begins no name of a provider's type: those are words.
const workloadPrefix = "k8s["

// Workload tells whether the address is that of an object of Kubernetes, and of what version and kind.
func (a Address) Workload() (apiVersion, kind string, is bool) {
	rest, is := strings.CutPrefix(a.Type, workloadPrefix)
	if !is {
		return "", "", false
	}
	quoted, err := strconv.QuotedPrefix(rest)
	if err != nil {
		return "", "", false
	}
	if apiVersion, err = strconv.Unquote(quoted); err != nil {
		return "", "", false
	}
	kind, is = strings.CutPrefix(rest[len(quoted):], "].")
	return apiVersion, kind, is
}

// Placed is a workload as clusters have it, or are to have it.
type Placed struct {
	// Clusters have so many replicas of it each; nil is of what is not divided.
	Clusters map[string]*int32
	// Object is what of it is shown, as JSON has it; nil if nothing is known, or may be shown.
	Object map[string]any
}

// Workload is what is to become of one.
type Workload struct {
	Address       Address
	Before, After Placed
	// Removed says that it leaves all clusters.
	Removed bool
	// Detail says it in a sentence.
	Detail string
	// Uses are the Secrets of its namespace that it needs.
	Uses          []string
	Preconditions []string
}

// Change is what may be seen of it. What leaves all clusters is a Delete, so that nobody misses it who
// looks for deletions; everything else that becomes of one workload is one Place.
func (w *Workload) Change() (*Change, error) {
	c := &Change{Address: w.Address, Action: Place, Detail: w.Detail, Uses: w.Uses, Preconditions: w.Preconditions, Shapes: map[string]Shape{"clusters": ShapeMap}}
	var err error
	if len(w.Before.Clusters) > 0 {
		if c.Before, err = w.Before.value(); err != nil {
			return nil, fmt.Errorf("%s: %w", w.Address, err)
		}
	}
	if w.Removed {
		c.Action, c.Reason = Delete, LeavesClusters
	} else if c.After, err = w.After.value(); err != nil {
		return nil, fmt.Errorf("%s: %w", w.Address, err)
	}
	before, err := c.Before.node(c.Shapes)
	if err != nil {
		return nil, err
	}
	after, err := c.After.node(c.Shapes)
	if err != nil {
		return nil, err
	}
	c.Fields = compared(before, after, "").fields(nil, nil)
	return c, nil
}

func (p *Placed) value() (*Value, error) {
	doc := map[string]any{}
	clusters := map[string]any{}
	for name, replicas := range p.Clusters {
		clusters[name] = "whole"
		if replicas != nil {
			clusters[name] = *replicas
		}
	}
	doc["clusters"] = clusters
	for field, value := range p.Object {
		doc[field] = value
	}
	text, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	return &Value{JSON: text}, nil
}

// placing is what a Place does, in a few words.
func (r Rendering) placing(c *Change) string {
	if c.Before == nil {
		return "placed in clusters"
	}
	return "changed in clusters"
}
