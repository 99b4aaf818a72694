package interpret

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Mode is how many clusters an object runs in, and the share of each.
type Mode string

// The modes. A policy may choose another mode than the kind's default, as far as CheckMode permits.
const (
	// Duplicated: the whole object in each chosen cluster.
	Duplicated Mode = "Duplicated"
	// Divided: each chosen cluster gets a share of the replicas.
	Divided Mode = "Divided"
	// Single: the whole object in exactly one cluster.
	Single Mode = "Single"
)

// CheckMode returns why an object cannot run in a mode, with a remedy, or "" if it can.
func (k KindInfo) CheckMode(obj *unstructured.Unstructured, m Mode) string {
	switch {
	case m == Divided && !k.Divided:
		return "a " + k.Kind + " has no replicas to divide: use mode Duplicated or Single"
	case m == Divided && k.indivisible != nil:
		return k.indivisible(obj)
	case m != Single && k.Single:
		return "a " + k.Kind + " can run in only one cluster: use mode Single"
	}
	return ""
}
