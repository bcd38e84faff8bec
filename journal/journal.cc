#include "wstore/journal.h"
