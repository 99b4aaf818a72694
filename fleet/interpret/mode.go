package interpret

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Mode says on how many clusters an object runs, and what each of them gets.
type Mode string

// The modes. A policy may choose another than a kind's default, as far as Allows
// permits.
const (
	// Duplicated: the whole object in each chosen cluster.
	Duplicated Mode = "Duplicated"
	// Divided: each chosen cluster gets a share of the replicas.
	Divided Mode = "Divided"
	// Single: the whole object in exactly one cluster, as if there were no other.
	Single Mode = "Single"
)

// Allows tells why an object cannot run in a mode, with what can be done about
// it, or "".
func (k Kind) Allows(obj *unstructured.Unstructured, m Mode) string {
	switch {
	case m == Divided && !k.Divided:
		return "a " + k.Kind + " has no replicas to divide: use Duplicated or Single"
	case m == Divided && k.indivisible != nil:
		return k.indivisible(obj)
	case m != Single && k.Single:
		return "a " + k.Kind + " is one thing and cannot be in two clusters: use Single"
	}
	return ""
}
