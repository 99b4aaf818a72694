package providerapi

// Mark is a label on a cty value that conversions and expressions propagate.
type Mark string

// Sensitive marks values that only users who may read Secrets may see. Values are marked where they enter (a
// Secret, or a schema that declares it), and unmarked only when they are sent to a provider or stored as
// state.
const Sensitive Mark = "sensitive"
