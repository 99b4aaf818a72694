package interpret

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

// Allows tells why a policy may not place objects of this kind in a mode, or "".
func (k Kind) Allows(m Mode) string {
	switch {
	case m == Divided && !k.Divided:
		if k.undivided != "" {
			return k.undivided
		}
		return k.Kind + " has no replicas to divide: use Duplicated or Single"
	case m != Single && k.Single:
		return "a " + k.Kind + " cannot be in two clusters: use Single"
	}
	return ""
}
