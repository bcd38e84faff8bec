#include "store/checkpoint/checkpoint.h"
