package change

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Workloads are Kubernetes objects that run in member clusters. The fleet decides about their placement. A
// plan holds that decision as one of its changes, so that it is shown, digested, approved and stored alike.

// WorkloadAddress returns the address of a Kubernetes object as expressions name it:
// k8s["apps/v1"].Deployment["web"].
func WorkloadAddress(namespace, apiVersion, kind, name string) Address {
	return Address{Namespace: namespace, Type: workloadPrefix + strconv.Quote(apiVersion) + "]." + kind, Name: name}
}

// workloadPrefix cannot begin a provider's type, which is an identifier.
const workloadPrefix = "k8s["

// Workload returns the API version and kind of a Kubernetes object's address, and whether it is
// one.
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

// WorkloadState is the current or planned state of a workload in member clusters.
type WorkloadState struct {
	// Clusters maps each cluster to its replicas, or to nil if the workload is not divided.
	Clusters map[string]*int32
	// Object is the visible part of the object as decoded JSON. It is nil if it is unknown or must
	// not be shown.
	Object map[string]any
}

// Workload is a planned change of one workload.
type Workload struct {
	Address       Address
	Before, After WorkloadState
	// Removed reports whether the workload leaves all clusters.
	Removed bool
	// Detail describes the change in a sentence.
	Detail string
	// Uses are the Secrets of its namespace that the workload needs.
	Uses          []string
	Preconditions []string
}

// Change returns the public form of the change. A workload that leaves all clusters is a Delete, so
// that a filter for deletions finds it. Every other change of a workload is a Place.
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
	before, err := c.Before.Node(c.Shapes)
	if err != nil {
		return nil, err
	}
	after, err := c.After.Node(c.Shapes)
	if err != nil {
		return nil, err
	}
	c.Fields = Compare(before, after, "").Fields(nil, nil)
	return c, nil
}

func (p *WorkloadState) value() (*Value, error) {
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
